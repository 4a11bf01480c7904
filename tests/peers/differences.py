"""Tests of peers that do not pass with kcachefs in the place of their cache, each with the choice behind it.

`docs/library.md` tells the choices; `scripts/peer_suites.py` checks that nothing else differs.
"""

from __future__ import annotations

LAYOUT = "looks into the peer's own files, folders or private attributes"
WINDOWS = "patches the peer's retries for Windows, which kcachefs does not run on"
REFUSED = "a folder that cannot be written is no error: the value stays in memory, `put` says so, the first is logged"
BLOCKS = "counts in blocks of 4 KiB, as the disk does, and refuses a bound that no entry fits into"
PLACE = "has another default folder"
DOUBT = "a memory bound of 0 keeps nothing in memory and is allowed"
READ_OR_REFUSED = "has no fallback for functions that cannot be read: it reads them another way, or refuses"
TOLD = "an encoding that fails is told to the caller, and nothing is kept"

DIFFERENCES: dict[str, dict[str, str]] = {
    "cuda.core": {
        "test_filestream_cache_replace_retries_on_sharing_violation": WINDOWS,
        "test_filestream_cache_unlink_retries_on_sharing_violation": WINDOWS,
        "test_filestream_cache_unlink_propagates_non_windows_permission_error": LAYOUT,
        "test_filestream_cache_unlink_skips_locked_entries_in_eviction": WINDOWS,
        "test_filestream_cache_eviction_propagates_non_sharing_permission_error": BLOCKS,
        "test_filestream_cache_eviction_propagates_windows_non_sharing_eacces": WINDOWS,
        "test_filestream_cache_permission_error_propagates_on_posix": REFUSED,
        "test_filestream_cache_write_phase_permission_error_propagates_on_windows": WINDOWS,
        "test_filestream_cache_permission_error_windows_is_narrowed": WINDOWS,
        "test_filestream_cache_prune_only_if_stat_unchanged": LAYOUT,
        "test_filestream_cache_touch_atime_only_if_stat_unchanged": LAYOUT,
        "test_filestream_cache_returns_bytes_verbatim": LAYOUT,
        "test_filestream_cache_input_forms_are_byte_equivalent": LAYOUT,
        "test_default_cache_dir_lives_under_user_cache_root": PLACE,
        "test_filestream_cache_uses_default_dir_when_path_omitted": PLACE,
        "test_filestream_cache_recreates_tmp_dir_if_missing": LAYOUT,
        "test_filestream_cache_sweeps_stale_tmp_files_on_open": LAYOUT,
        "test_filestream_cache_clear_preserves_young_tmp_files": LAYOUT,
        "test_filestream_cache_clear_does_not_unlink_replaced_file": LAYOUT,
        "test_filestream_cache_clear_does_not_break_concurrent_writer": LAYOUT,
        "test_filestream_cache_size_cap_does_not_unlink_replaced_file": LAYOUT,
        "test_filestream_cache_size_cap_counts_tmp_files": BLOCKS,
        "test_filestream_cache_size_cap_evicts_oldest": BLOCKS,
        "test_filestream_cache_atime_lru_promotes_recently_read": BLOCKS,
        "test_filestream_cache_writes_skip_scan_when_under_cap": LAYOUT,
        "test_filestream_cache_writes_trigger_scan_when_over_cap": BLOCKS,
        "test_filestream_cache_tracker_reconciles_after_external_drift": BLOCKS,
        "test_filestream_cache_tracker_clamps_at_zero_under_delete_race": LAYOUT,
        "test_filestream_delitem_missing_key_with_cap_raises_keyerror": BLOCKS,
        "test_filestream_clear_with_cap_resets_tracker": LAYOUT,
        "test_filestream_iter_entry_paths_skips_stray_top_level_file": LAYOUT,
        "test_filestream_iter_entry_paths_returns_when_entries_dir_missing": LAYOUT,
        "test_filestream_sum_tmp_sizes_returns_zero_when_tmp_dir_missing": LAYOUT,
        "test_filestream_enforce_size_cap_noop_without_cap": LAYOUT,
        "test_filestream_touch_atime_path_fallback_swallows_stat_failure": LAYOUT,
        "test_filestream_touch_atime_swallows_open_failure": LAYOUT,
        "test_filestream_touch_atime_swallows_fstat_failure": LAYOUT,
        "test_inmemory_cache_overwrite_replaces_value_and_updates_size": LAYOUT,
        "test_inmemory_cache_rejects_non_positive_size_cap": DOUBT,
        "test_inmemory_cache_concurrent_threads_stay_consistent": LAYOUT,
    },
    "ninetoothed": {
        "test_disk_backed_default_serializer_is_json": LAYOUT,
        "test_disk_backed_custom_serializer": LAYOUT,
        "test_corrupt_disk_file_returns_default": LAYOUT,
        "test_successful_put_leaves_no_tmp_file": LAYOUT,
        "test_put_overwrites_existing_file_atomically": LAYOUT,
        "test_oserror_during_rename_keeps_old_file": LAYOUT,
        "test_no_tmp_residue_under_concurrent_writes": LAYOUT,
        "test_fallback_id_prefix_when_source_unavailable": READ_OR_REFUSED,
        "test_fallback_distinguishes_functools_partial_kwargs": READ_OR_REFUSED,
        "test_fallback_distinguishes_functools_partial_args": READ_OR_REFUSED,
        "test_disk_failure_preserves_l1": TOLD,
        "test_disk_failure_leaves_no_tmp_residue": TOLD,
    },
}
