"""The page: jobs, recipes, plans and comparisons in a browser, on the Python API.

server    binds 127.0.0.1, makes the token, serves
guard     who may ask, and what a browser may load
app       every address and its view
live      parts of pages that follow their jobs
"""
