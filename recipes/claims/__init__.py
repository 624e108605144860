"""Claims about attention from the literature, each checked by training the models that it compares."""
