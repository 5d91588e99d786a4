"""What programs, meshes, layouts and sharded programs are: types, text in, text out, verifiers."""
