"""One style for everything that is drawn: charts, overlays, panels."""
