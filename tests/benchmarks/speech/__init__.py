"""Speaker verification by sketches and by EM, on real recordings and on generated voices."""
