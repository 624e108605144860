"""Writing models in other formats: Hugging Face, CTranslate2, ONNX, engine folders."""
