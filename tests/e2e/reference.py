"""The ground truth of the end-to-end tests that need more of it than one command gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engines.base import Engine
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.grammars.reply_constraint import constraint_of
from services.inference.grammars.token_table import TokenTable
from services.inference.reference import ReferenceReply, generate


@dataclass(frozen=True, slots=True)
class Reference:
    """What `outrider reference` says (test_commands has the command); its model is loaded once for
    all who ask."""

    engine: Engine
    vocabulary: Vocabulary

    def reply(
        self,
        prompt: str | Sequence[Message],
        sampling: SamplingParams,
        tools: Sequence[str] = (),
    ) -> ReferenceReply:
        """Of a prompt or of whole messages; `tools` as `check_tools` returns them."""
        messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        ids = self.vocabulary.encode_chat(messages, tools)
        constraint = None
        if sampling.is_constrained:
            constraint = constraint_of(TokenTable(self.vocabulary), sampling, ids)
        return generate(self.engine, ids, sampling, self._new_reply, constraint=constraint)

    def _new_reply(self, sampling: SamplingParams) -> ReplyText:
        detokenizer = self.vocabulary.detokenizer(keep_special=sampling.special_tokens)
        return ReplyText(sampling, self.vocabulary.stop_ids, detokenizer)
