"""The page of `dsindex report`: what it shows, its pictures, and its HTML."""
