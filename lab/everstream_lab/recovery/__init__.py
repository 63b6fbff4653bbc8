"""Recovery schemes of the papers, which `recovery=` finds by name through entry points"""
