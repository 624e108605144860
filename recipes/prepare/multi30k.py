"""Multi30k: decompress the parallel files, one sentence per line, as train.en, valid.de, test.fr …"""

from dataset_io import parse_folders, read_lines, write_lines

SPLITS = {"train": "train", "val": "valid", "test_2016_flickr": "test"}  # name of the published file → ours

if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for published_split, split in SPLITS.items():
        for path in sorted(source.glob(f"{published_split}.*.gz")):
            language = path.name.split(".")[1]
            write_lines(target / f"{split}.{language}", read_lines(path))
