"""Files in object stores and on web servers: their addresses, listings and ranged reads, by the obstore library."""
