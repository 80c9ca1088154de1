"""Where nodes come from: of each provider its part of a spec, its rendering, its rules, and its notices."""
