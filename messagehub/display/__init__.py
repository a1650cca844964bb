"""What people see: values as text, tables of text for terminals, HTML for notebooks."""
