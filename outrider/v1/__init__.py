"""Generated from `protos/outrider/v1` by `tools/gen_protos.py`; never edited."""
