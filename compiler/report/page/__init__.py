"""One self-contained page to look at: a compiled plan, its rivals, a sweep's frontier. Nothing is fetched."""
