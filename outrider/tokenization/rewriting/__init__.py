"""What an operator has done to chats before they become a prompt. Pure."""

from outrider.tokenization.rewriting.policy import AS_IT_IS, RewritingPolicy, TooLong
from outrider.tokenization.rewriting.rewriter import Rewriter

__all__ = ["AS_IT_IS", "Rewriter", "RewritingPolicy", "TooLong"]
