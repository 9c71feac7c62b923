"""Rows in and out: dicts, Arrow, pandas, Polars, CSV, JSON lines and Parquet.

Rows come in as people have them and leave this package as record batches with exactly the types of
a schema version. Nothing is guessed and nothing is rounded: a value that does not fit is refused,
with its row and its column.

    columns     the columns of a table as people write them: text, Python's types, Arrow's
    rows        what may be given as rows, in pieces of a bounded size
    coercion    rows of whatever form -> batches of a schema
    arrow, objects, text
                one column: from another Arrow type, with lists, maps and structs; from Python's
                objects; from text
    values      one value: what else is taken for a value that fits (`lowmark.catalog.values`)
    files, csv_files, source
                files of rows, whole or as a stream, with line numbers in errors
    unpacking   refuses a file of which a part would fill all memory when it is unpacked
"""
