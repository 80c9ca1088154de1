"""Templates of clusters that run Rayscribe."""
