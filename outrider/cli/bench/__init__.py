"""`outrider bench`: load a mesh, or any endpoint of the OpenAI API, and measure."""
