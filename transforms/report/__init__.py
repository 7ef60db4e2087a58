"""The report of a data set: what it holds, and how it looks, as one page without outside assets.

`contents` is the value that the page is made of; `page` renders it; the other modules gather it.
"""
