"""The systems under test: one way to ask each of them the same work, each in a process of its
own."""
