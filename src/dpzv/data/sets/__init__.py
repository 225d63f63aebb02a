"""One module a data set; its `CARD` says what it is and carries its loader, and nothing else has to know of it.

These modules are all imported to list the data sets, so what is slow to import (pandas, scikit-learn, pictures) is
imported inside functions.
"""
