"""The stages, one file each. A stage reads the newest encoder of each side and saves what it trained.

==============  ====================  ==========================================================
file            kinds                 paper
==============  ====================  ==========================================================
base            (first, implicit)     the base models
language        retromae, causal      D.1; causal is for decoders that start from random weights
contrastive     unsupervised,         D.1, D.2, equation (4)
                supervised, document
align           align                 4.3.1, equations (1) to (3)
joint           joint                 4.4, equation (1)
==============  ====================  ==========================================================
"""
