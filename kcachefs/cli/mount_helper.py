"""`mount.kcachefs`, which mount(8) runs for fstab lines of type kcachefs."""


def main() -> None: ...
