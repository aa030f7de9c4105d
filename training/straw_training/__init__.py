"""straw_training: how straw-tiny and its drafters are made; every module is one step of the recipe."""
