from __future__ import annotations
from pathlib import Path
from outrider.models.vocabulary import Vocabulary
from tests.mesh import running_mesh
from tests.chromium import running_chromium
from services.edge.http.config import HttpConfig
from services.edge.wire.client import DESCRIBE_STREAM

async def test_it(words: Vocabulary, tmp_path: Path) -> None:
    async with running_mesh(words, tmp_path, edge={"http": HttpConfig(port=0)}) as mesh, running_chromium(tmp_path) as browser:
        page = await browser.open(f"http://127.0.0.1:{mesh.edges[0].ports.http}/ui")
        print(page.console, page.errors)
        told = await page.evaluate("fetch('/ui/transport.json').then(it => it.json())")
        print(told)
        got = await page.evaluate("""(async () => {
          const told = await (await fetch('/ui/transport.json')).json();
          const hex = (it) => new Uint8Array(it.match(/../g).map((b) => parseInt(b, 16)));
          const wt = new WebTransport(told.webtransport.url, {serverCertificateHashes: told.webtransport.certificate_hashes.map((it) => ({algorithm: it.algorithm, value: hex(it.value)}))});
          try { await wt.ready; } catch (e) { return 'not ready ' + e; }
          const s = await wt.createBidirectionalStream();
          const w = s.writable.getWriter();
          await w.write(new Uint8Array(%s)); w.close().catch(() => {});
          const r = s.readable.getReader(); let n = 0; const parts=[];
          for (;;) { const {done, value} = await r.read(); if (done) break; parts.push(new TextDecoder().decode(value)); }
          wt.close({closeCode: 5, reason: 'bye'});
          const c = await wt.closed;
          return [parts, c.closeCode, c.reason];
        })()""" % list(DESCRIBE_STREAM), patience_s=20)
        print("GOT", got, page.errors, page.console)
        import asyncio; await asyncio.sleep(1)
        assert 0
