"""What is measured. A part yields the rows of the table; what it raises becomes a row as well."""
