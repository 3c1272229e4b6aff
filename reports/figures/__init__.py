"""One figure a file, each a pure function of fit results and run tables that gives a matplotlib Figure."""
