"""Grammars that replies follow: llguidance's matchers over the model's own vocabulary.

`token_table` tells llguidance the vocabulary, `compiler` compiles a grammar, `matcher` follows one
reply, `service` compiles beside the event loop and keeps what was compiled.
"""
