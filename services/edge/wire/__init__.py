"""The border: protobuf frames to the session's inputs, its actions to protobuf frames."""
