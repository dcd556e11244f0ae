"""Progress lines, tables, figures and the HTML page."""
