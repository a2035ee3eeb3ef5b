"""Grammars that replies follow: llguidance's matchers over the model's own vocabulary.

`token_table` passes the vocabulary to llguidance, `compiler` compiles a grammar, `matcher` follows
one reply, `service` compiles beside the event loop and caches the results.
"""
