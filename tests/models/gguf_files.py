"""How small GGUF files are written."""

from __future__ import annotations

from gguf import GGUFWriter


def write_out(writer: GGUFWriter) -> None:
    """Everything that was added, and the end."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
