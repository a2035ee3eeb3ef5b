"""What models think, and variables for their templates, over the native protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.client import Accepted, ContentDelta, Message, ReasoningDelta
from outrider.errors import InvalidRequestError
from tests.edge.integration.running import running
from tests.models import thinking_templates
from tests.models.thinking_templates import QWEN3, R1, reply_ids

ASK = [Message("user", "two and two?")]
OFF = {"enable_thinking": False}


@pytest.mark.parametrize("thin", [False, True])
async def test_reasoning_comes_as_events_and_in_the_result(thin: bool, tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(R1)
    async with running(vocabulary, tmp_path, "") as mesh, mesh.client() as client:
        mesh.region.reply = reply_ids(vocabulary, "Hm.\n</think>\n\nFour.")
        async with client.chat(ASK, thin=thin) as chat:
            events = [event async for event in chat]
            result = await chat.result()
        accepted = next(it for it in events if isinstance(it, Accepted))
        assert accepted.reply_format is not None and accepted.reply_format.begins_in_reasoning
        assert result.text == "Hm.\n</think>\n\nFour.", "the model's own text"
        assert (result.reasoning, result.content) == ("Hm.", "Four.")
        assert result.message == Message("assistant", "Four.", reasoning="Hm.")
        assert "".join(it.text for it in events if isinstance(it, ReasoningDelta)) == "Hm."
        assert "".join(it.text for it in events if isinstance(it, ContentDelta)) == "Four."
        await mesh.settled()


async def test_whether_a_reply_begins_in_reasoning_is_read_from_its_prompt(tmp_path: Path) -> None:
    opening = "<think>\\n' if messages[0].role == 'user' else '<|Assistant|>' }}"
    template = R1.replace("<think>\\n' }}", opening)
    vocabulary = thinking_templates.vocabulary_of(template, like=R1)
    async with running(vocabulary, tmp_path, "Four.") as mesh, mesh.client() as client:
        for chat, said in ((ASK, ("Four.", "")), ([Message("system", "x"), *ASK], ("", "Four."))):
            async with client.chat(chat) as asked:
                result = await asked.result()
            assert (result.reasoning, result.content) == said
        await mesh.settled()


@pytest.mark.parametrize("thin", [False, True])
async def test_variables_reach_the_template(thin: bool, tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(QWEN3)
    async with running(vocabulary, tmp_path, "Four.") as mesh, mesh.client() as client:
        async with client.chat(ASK, template_variables=OFF, thin=thin) as chat:
            assert (await chat.result()).content == "Four."
        opened = mesh.region.opened[-1]
        if thin:
            assert opened.messages.template_variables == '{"enable_thinking":false}'
        else:
            assert vocabulary.decode(mesh.region.prompt(opened)).endswith("</think>\n\n")
        async with client.chat(ASK, template_variables={"foo": 1}, thin=thin) as chat:
            with pytest.raises(InvalidRequestError, match="no variable 'foo'"):
                await chat.result()
        await mesh.settled()


@pytest.mark.parametrize("thin", [False, True])
async def test_a_reply_continues_what_was_begun(thin: bool, tmp_path: Path) -> None:
    """Reasoning if that was begun, and otherwise the answer, though this template's prompts begin
    reasoning by themselves."""
    vocabulary = thinking_templates.vocabulary_of(R1)
    continued = {"continue_final_message": True}
    async with running(vocabulary, tmp_path, "") as mesh, mesh.client() as client:
        for begun, reply, read in (
            ("It is", " four.", ("", " four.")),
            ("<think>", "\nHm.\n</think>\n\nFour.", ("Hm.", "Four.")),
        ):
            mesh.region.reply = reply_ids(vocabulary, reply)
            said = [*ASK, Message("assistant", begun)]
            async with client.chat(said, template_variables=continued, thin=thin) as chat:
                result = await chat.result()
            assert (result.reasoning, result.content) == read
            opened = mesh.region.opened[-1]
            if thin:
                assert opened.messages.template_variables == '{"continue_final_message":true}'
            else:
                assert vocabulary.decode(mesh.region.prompt(opened)).endswith(begun)
        await mesh.settled()
