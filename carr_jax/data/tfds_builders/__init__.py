"""TensorFlow Datasets without TensorFlow: datasets of questions and of expert traces in array_record files.

    from carr_jax.data.tfds_builders import builders                       # makes the names known
    tfds.data_source("carr_questions", split="train", data_dir="data")     # records as TFDS gives them
    read_question_dataset("data", "carr_questions")                        # our own, checked

`launch/build_dataset.py` makes them.  Needs the extra `data`.
"""
