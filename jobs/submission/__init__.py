"""From a recipe to a run request, its package, and the job that Ray is asked for. Pure."""
