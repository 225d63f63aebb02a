"""Each module is a data set: its `CARD` describes it and carries its loader, so a new set changes no other file.

These modules are all imported to list the data sets, so what is slow to import (pandas, scikit-learn, pictures) is
imported inside functions.
"""
