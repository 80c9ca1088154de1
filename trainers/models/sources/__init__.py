"""Sources of models: resolves the names in a recipe to local folders that transformers opens."""
