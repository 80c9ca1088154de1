"""Sources of models: from what a recipe names to a folder of this node that transformers opens."""
