"""How objects are written durably: to a local disk, and to an object store that may lack conditions."""
