"""Resize photos to 512 px as JPEG 90 with img2dataset: URLS OUT PROCESSES."""

import sys

from img2dataset import download

if __name__ == "__main__":
    urls, out, processes = sys.argv[1:]
    download(
        url_list=urls,
        output_folder=out,
        output_format="webdataset",
        processes_count=int(processes),
        thread_count=2,  # threads that read; each process resizes in one
        image_size=512,
        resize_mode="keep_ratio_largest",
        encode_quality=90,
        number_sample_per_shard=100,
        enable_wandb=False,
    )
