import ast, sys

from literals import config_map
from pathlib import Path
enc=config_map("encoder.EncoderConfig"); gpt=config_map("gpt.GptConfig"); tr=config_map("translator.TranslatorConfig"); rec=config_map("recurrent.RecurrentConfig")
rd=config_map("reader.ReaderConfig"); rdc=config_map("reader.ClassifierConfig"); mem=config_map("memory.MemoryConfig"); dec=config_map("decoding.DecodingConfig"); gen=config_map("generation.GenerationConfig"); see=config_map("seeing.SeeingConfig"); mask=config_map("data.MaskingConfig"); tok=config_map("data.TokenizerConfig"); emb=config_map("embedding.EmbeddingConfig"); el=config_map("elmo.ElmoConfig"); stack=config_map("stack.StackConfig"); doc=config_map("data.LanguageConfig"); train=config_map("training.TrainingConfig")
def edit(path, keys, kwargs=None, callees=None):
    p = Path(path); text = p.read_text(); lines = text.split("\n"); edits = set()
    kwargs = keys if kwargs is None else kwargs
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            for k in node.keys:
                if isinstance(k, ast.Constant) and isinstance(k.value, str) and k.value in keys:
                    edits.add((k.lineno, k.col_offset + 1, k.value, keys[k.value]))
        if isinstance(node, ast.Call):
            f = ast.unparse(node.func).split(".")[-1]
            if callees is None or f in callees or any(f.startswith(c) for c in callees):
                for k in node.keywords:
                    if k.arg in kwargs: edits.add((k.lineno, k.col_offset, k.arg, kwargs[k.arg]))
    for line, col, old, new in sorted(edits, reverse=True):
        raw = lines[line-1].encode()
        if raw[col:col+len(old)].decode() != old: print("mismatch", path, line, old); continue
        lines[line-1] = (raw[:col] + new.encode() + raw[col+len(old):]).decode()
    p.write_text("\n".join(lines)); print(path, len(edits))
T="tests/"
E={"encoder"}; 
edit(T+"attention/test_intervention.py", {}, enc, E)
edit(T+"families.py", {}, enc, E)
edit(T+"engine/test_encoder.py", enc, enc, E)
edit(T+"engine/test_gpt.py", {**gpt, **gen}, {**gpt, **gen}, {"gpt","model","ready","same","load_generator(folder, backend=one)"})
edit(T+"engine/test_translator.py", {**tr, **dec}, {**tr, **dec}, {"translator","search"})
edit(T+"engine/test_file.py", {**tr, **dec}, {**tr, **dec}, {"translator","written","search"})
edit(T+"engine/test_shortlist.py", {**dec}, dec, {"search"})
edit(T+"engine/test_backend.py", dec, dec, {"translate"})
edit(T+"models/test_chosen_states.py", enc, enc, E)
edit(T+"models/test_classifier.py", {"feature_layers":"num_feature_layers","feature_width":"feature_size"}, {}, {"none"})
edit(T+"models/test_memory_network.py", mem, {}, {"none"})
edit(T+"models/test_gpt.py", {}, gpt, {"model"})
edit(T+"models/test_seq2seq.py", rec, rec, {"small"})
edit(T+"models/test_translator.py", tr, tr, {"small"})
edit(T+"checkpoint/test_hf_names.py", tr, tr, {"small_config"})
edit(T+"checkpoint/samples.py", tr, tr, {"small_config"})
edit(T+"checkpoint/test_model_folder.py", tr, tr, {"small_config"})
edit(T+"checkpoint/test_memory_folder.py", mem, {}, {"none"})
edit(T+"checkpoint/test_onnx_encoder.py", {"span_feedforward":"span_feed_forward"}, {}, {"none"})
edit(T+"decoding/test_search.py", dec, {}, {"none"})
edit(T+"pipeline/test_translation.py", dec, dec, {"pipeline","translate","toy","score","stream"})
edit(T+"pipeline/test_folders.py", {**tr, **stack}, {}, {"none"})
edit(T+"pipeline/test_records.py", gen, enc, E)
edit(T+"test_convert.py", {k:v for k,v in tr.items() if k in ("shared","tied","epsilon")}, {}, {"none"})
edit(T+"test_every_folder.py", {k:v for k,v in tr.items()}, {}, {"none"})
edit(T+"benchmarks/test_workload.py", {}, enc, {"config"})
edit("benchmarks/peers/regard_runner.py", {"head_dropout":"classifier_dropout"}, {**enc}, {"config"})
edit("benchmarks/targets/loss_curves.py", tr, {}, {"none"})
edit(T+"training/test_looked.py", tr, {}, {"none"})
