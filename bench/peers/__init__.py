"""Other systems: a module for each, which says how it is installed, started, asked and tuned.

    python -m bench.peers [NAME...]

installs those of these names, each into a folder of its own below `.bench-venvs`. Nothing else of
this project needs any of it.
"""
