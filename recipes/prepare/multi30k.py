"""Multi30k: unpack the parallel files, one sentence a line, as train.en, valid.de, test.fr …"""

from folders import folders, lines_of, write_lines

SPLITS = {"train": "train", "val": "valid", "test_2016_flickr": "test"}

if __name__ == "__main__":
    source, target = folders(__doc__)
    for theirs, ours in SPLITS.items():
        for path in sorted(source.glob(f"{theirs}.*.gz")):
            language = path.name.split(".")[1]
            write_lines(target / f"{ours}.{language}", lines_of(path))
