"""Pictures and pages of programs, masks, timelines and reports, as HTML and SVG without a network."""
