"""Changes the model behind a collection in use: vectors are added and compared, readers are switched, and back.

In: a collection and two models. Out: the record ``care_active`` in its metadata, which readers follow. Each stage is a
call of the packages below, and what is in the collection says which comes next. It knows no command and no service.
"""
