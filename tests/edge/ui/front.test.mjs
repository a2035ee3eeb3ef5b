// The text of a reply as the page shows it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Front, units } from "../../../services/edge/ui/static/front.js";

test("a guess is shown, confirmed, and marked as early", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "The sky", at: 10 });
  assert.equal(front.text, "The sky");
  front.commit({ text: "The", at: 30 });
  assert.equal(front.final, "The");
  assert.equal(front.guess, " sky");
  front.commit({ text: " sky is", at: 50 });
  assert.equal(front.text, "The sky is");
  assert.deepEqual(front.marks, [{ begin: 0, end: 7, kind: "early" }]);
  assert.equal(front.earlyChars, 7);
  assert.equal(front.earlyMs, 3 * 20 + 4 * 40);
  assert.equal(front.erasedChars, 0);
  assert.deepEqual([front.firstShownAt, front.firstLastingAt, front.firstFinalAt], [10, 10, 30]);
});

test("a word that stays is not marked when what follows it is replaced", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "Bread. The", at: 0 });
  front.commit({ text: "Bread.", at: 5 });
  front.commit({ text: "\n\n", at: 6 });
  assert.deepEqual(front.fixes, []);
  front.commit({ text: "In Rome", at: 7 });
  assert.deepEqual(front.fixes, [{ begin: 8, end: 12, at: 7 }]);
});

test("what replaces a wrong guess is marked from the beginning of its word", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "It was blue", at: 0 });
  front.commit({ text: "It was ", at: 5 });
  front.provisional({ eraseTo: 0, text: "", at: 6 });
  front.commit({ text: "red", at: 7 });
  assert.equal(front.erasedChars, 4);
  assert.deepEqual(front.fixes, [{ begin: 7, end: 10, at: 7 }]);
  assert.deepEqual(front.ranges(100), [
    { begin: 0, end: 7, kind: "early" },
    { begin: 7, end: 10, kind: "fixed" },
  ]);
  assert.deepEqual(front.ranges(2000), [{ begin: 0, end: 7, kind: "early" }]);
});

test("final text that disagrees without a retraction takes the guess away", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "blue", at: 0 });
  front.commit({ text: "blind", at: 1 });
  assert.equal(front.text, "blind");
  assert.equal(front.guess, "");
  assert.equal(front.erasedChars, 2);
});

test("a first word that is replaced did not last", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "Hello you", at: 10 });
  front.provisional({ eraseTo: 0, text: "Well", at: 40 });
  front.commit({ text: "Well then", at: 90 });
  assert.deepEqual([front.firstShownAt, front.firstLastingAt, front.firstFinalAt], [10, 40, 90]);
});

test("offsets of the wire are code points", () => {
  const front = new Front();
  front.provisional({ eraseTo: 0, text: "😀😀a", at: 0 });
  front.provisional({ eraseTo: 1, text: "b", at: 1 });
  assert.equal(front.text, "😀b");
  front.commit({ text: "😁", at: 2 });
  assert.equal(front.text, "😁");
  assert.equal(units("😀ab", 2), 3);
});

test("a guess that nothing confirms is gone at the end", () => {
  const front = new Front();
  front.commit({ text: "Yes.", at: 0 });
  front.provisional({ eraseTo: 0, text: " And", at: 1 });
  front.end();
  assert.equal(front.text, "Yes.");
  assert.equal(front.erasedChars, 4);
});

test("whatever comes, the final text is what was committed, and marks are sorted and apart", () => {
  let state = 7;
  const random = (n) => (state = (state * 1103515245 + 12345) % 2 ** 31) % n;
  for (let round = 0; round < 300; round++) {
    const front = new Front();
    let wanted = "";
    for (let step = 0; step < 40; step++) {
      const text = Array.from({ length: random(4) }, () => "ab 😀"[random(4)] ?? "x").join("");
      const whole = text.isWellFormed() ? text : "x";
      if (random(2)) {
        const points = Array.from(front.guess).length;
        front.provisional({ eraseTo: random(points + 1), text: whole, at: step });
      } else {
        front.commit({ text: whole, at: step });
        wanted += whole;
      }
      assert.equal(front.final, wanted);
      let last = 0;
      for (const { begin, end } of front.ranges(step)) {
        assert.ok(begin >= last && end > begin && end <= front.text.length);
        last = end;
      }
    }
  }
});
