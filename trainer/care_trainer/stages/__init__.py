"""The stages, one file each. A stage reads the newest encoder of each side and returns what it trained.

==============  ====================  ==========================================================
file            kinds                 paper (arXiv 2604.10937)
==============  ====================  ==========================================================
base            (first, implicit)     the base models
static          static                –
retromae        retromae              D.1
contrastive     unsupervised,         D.1, D.2, equation (4)
                supervised, document
align           align                 4.3.1, equations (1) to (3)
joint           joint                 4.4, equation (1)
prune           prune                 5.4.3, table 7
==============  ====================  ==========================================================
"""
