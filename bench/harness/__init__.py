"""What benches share: figures and tables, prompts, meshes and clients under measurement."""
