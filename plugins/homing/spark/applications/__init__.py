"""The Spark applications as files that spark-submit can be given.

Python puts this folder first on the path of modules when it runs one of them: their names are such that they hide no
module of an author's.
"""
