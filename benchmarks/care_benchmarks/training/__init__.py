"""What training costs: stored teacher vectors against recomputed ones, our loop against a plain script."""
