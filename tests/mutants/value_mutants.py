"""Values: each arrives as it is or is refused, and none comes into an error or a log."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant, text

_ERRORS: Final = "tests/integration/writers/test_values_in_errors.py::"
_SERVER: Final = "tests/integration/postgres/test_refused_by_the_server.py::"
_HOSTILE: Final = "tests/property/test_hostile_values.py::"
_EXACT: Final = "tests/property/test_append_exact.py::"
_MISFITS: Final = "tests/integration/writers/test_misfits.py::"
_TYPES: Final = "tests/integration/writers/test_types.py::"
_KINDS: Final = "tests/unit/writers/test_kinds.py::"
_PAIRS: Final = "tests/integration/spark/test_type_pairs.py::"
_TASKS: Final = "tests/unit/spark/test_task.py::"
_URL: Final = "tests/unit/postgres/test_url.py::"

_KEEPS_ITS_STATE: Final = f"{_ERRORS}test_an_error_that_is_not_the_rows_keeps_class_and_state_and_no_value"
_FROM_NOTHING: Final = f"{_SERVER}test_what_became_ours_was_raised_from_nothing_that_quotes_a_row"
_MOMENT: Final = f"{_HOSTILE}test_a_moment_of_any_bits_arrives_or_is_refused"

ERRORS: Final[tuple[Mutant, ...]] = (
    mutant(
        "strip-at-the-writers",
        ("_refusal", "return stripped(error)", "return error"),
        tests=(_KEEPS_ITS_STATE,),
        why="The line of a COPY that was cancelled would be logged with the error's CONTEXT.",
    ),
    mutant(
        "strip-what-a-function-raised",
        ("postgres:_first_line", "_is_of_a_function(error)", "not error"),
        tests=(f"{_ERRORS}test_what_a_trigger_says_is_not_in_the_error_that_a_user_raises_from_its",),
        why="A trigger may quote the row in its message.",
    ),
    mutant(
        "strip-the-state-away",
        ("_stripped_driver", 'cast("Any", names) or None', "None"),
        tests=(f"{_ERRORS}test_a_user_s_own_error_stays_and_what_it_was_raised_from_is_stripped",),
        why="An application that catches its own IntegrityError could not tell which constraint it was.",
    ),
    mutant(
        "strip-at-the-transaction",
        ("stripped", "_stripped_driver(error)", "error"),
        ("stripped", "_stripped_alchemy(error)", "error"),
        tests=(_FROM_NOTHING,),
        why="LockTimeout and TransactionLost would be raised from an error that quotes the row.",
    ),
    mutant(
        "strip-at-the-end-of-a-block",
        ("translate", "return stripped(error)", "return error"),
        tests=(f"{_SERVER}test_what_sql_in_a_transaction_of_the_store_s_raises_quotes_no_row",),
        why="What is refused in a transaction that is not a job's quotes the key.",
    ),
    mutant(
        "strip-what-the-users-own-was-raised-from",
        ("refusals", "strip_chain(error)", "error.args"),
        tests=(f"{_ERRORS}test_a_user_s_own_error_stays_and_what_it_was_raised_from_is_stripped",),
        why="An Execute that raises its own error from the database's would log both.",
    ),
    mutant(
        "errors-of-the-users-own-sql",
        ("Execute.write", "with refusals(None, sql_of=repr(self)): ...", "if True: ..."),
        tests=(f"{_ERRORS}test_a_row_that_an_execute_s_sql_is_refused_for_is_a_refused_row",),
        why="The search would not name the record, and the log would have the parameters and the key.",
    ),
    mutant(
        "strip-in-a-task",
        ("Tasks.perform", 'cast("Exception", stripped(error))', "error"),
        tests=(f"{_TASKS}test_an_error_of_the_database_is_sent_without_what_quotes_a_row",),
        why="What a writer of the application's own raises in a task would be logged by the driver with the row.",
    ),
    mutant(
        "errors-in-a-task-that-do-not-pickle",
        ("_pickled", "pickle.dumps(stand_in)", "pickle.dumps(SinkError(str(stand_in)))"),
        tests=(f"{_TASKS}test_an_error_that_can_t_be_sent_does_not_become_one_of_ours_whose_text_is_logged",),
        why="The sink logs the text of our own errors, and this one's is of another author.",
    ),
    mutant(
        "cancelled-is-typed",
        text("postgres:_CANCELLED", "57014", "none"),
        tests=(f"{_SERVER}test_a_cancelled_statement_repeats_the_whole_function",),
        why="A statement that ran into a timeout once would end the job, with the driver's own error.",
    ),
    mutant(
        "read-only-is-typed",
        text("_READ_ONLY", "25006", "none"),
        tests=(f"{_SERVER}test_a_database_that_became_read_only_is_left_for_a_new_connection",),
        why="After a failover the job would end with the driver's own error.",
    ),
    mutant(
        "read-only-connections-are-left",
        ("PostgresSession._is_read_only", 'b"on" in told', 'b"never" in told'),
        tests=(f"{_SERVER}test_a_database_that_became_read_only_is_left_for_a_new_connection",),
        why="Each attempt would get the same connection, to what is the standby now.",
    ),
    mutant(
        "names-of-jdbc-parameters",
        ("_translated", "set(_ITS_OWN.split()).intersection(ignored)", "ignored"),
        tests=(f"{_URL}test_the_rest_of_a_password_that_has_an_ampersand_is_counted_and_not_logged",),
        why="The rest of a password that has an & in it would be logged as a parameter's name.",
    ),
    mutant(
        "parameters-in-the-wrong-place",
        ("_check_address", '("host", "dbname", "user")', "()"),
        tests=(f"{_URL}test_parameters_in_the_wrong_place_are_refused_before_a_server_repeats_them",),
        why="The server's error would repeat the name of the database, and with it the password.",
    ),
)

CONVERSIONS: Final[tuple[Mutant, ...]] = (
    mutant(
        "range-of-dates",
        ("_DAYS", "(-_EPOCH_JULIAN, 2_147_483_493 - _EPOCH_JULIAN)", "(-(2**31), 2**31 - 1)"),
        tests=(_MOMENT,),
        why="The smallest number that pgpq takes is PostgreSQL's -infinity, and would be written so.",
    ),
    mutant(
        "range-of-timestamps",
        ("_MICROSECONDS", "-_EPOCH_JULIAN * 86_400_000_000", "-(2**63)"),
        tests=(_MOMENT,),
        why="The same for timestamps.",
    ),
    mutant(
        "range-of-times",
        ("_OF_A_DAY", "(0, 86_400_000_000 - 1)", "(-(2**63), 2**63 - 1)"),
        tests=(_MOMENT,),
        why="Python's time of day begins anew at midnight: the next day's first second would be written.",
    ),
    mutant(
        "nanoseconds-in-json",
        ("CHECKS", "(NO_TIME_OF_DAY, NOT_FINITE, CUT)", "(NO_TIME_OF_DAY, NOT_FINITE)"),
        tests=(f"{_TYPES}test_a_part_that_python_leaves_out_is_refused",),
        why="Python's time of day and duration leave nanoseconds out.",
    ),
    mutant(
        "types-that-are-unknown",
        ("kinds:plain", "exact and exact.plain(kind)", "kind if exact is None else exact.plain(kind)"),
        tests=(
            f"{_KINDS}test_a_type_that_is_not_in_the_table_is_refused",
            f"{_KINDS}test_plain_values_are_the_same_also_of_a_slice",
        ),
        why="Into JSON would go what Python's text of a value happens to be.",
    ),
    mutant(
        "views-in-any-order",
        (
            "plain_values",
            "rebuilt(array, plain_values) if _TYPES.is_nested(kind) else array.cast(target)",
            "array.cast(target)",
        ),
        tests=(f"{_KINDS}test_views_in_any_order_are_lists_in_theirs",),
        why="Arrow's cast of a list view takes the values of other rows.",
    ),
    mutant(
        "json-inside-json",
        ("json_text:_marked", "json.loads(value)", "pass"),
        tests=(f"{_TYPES}test_a_text_that_is_not_json_cannot_end_the_object_that_it_is_in",),
        why="A text could add fields to the object that it is in.",
    ),
    mutant(
        "columns-as-their-plain-type",
        ("encoding:_columns", "plain_values(array)", "array"),
        tests=(f"{_TYPES}test_each_type_of_arrow_is_stored_by_value_also_inside_a_list",),
        why="Views, dictionaries and extensions would be cast as they are, which Arrow does for few of them.",
    ),
    mutant(
        "times-in-json",
        ("CHECKS", "(NO_TIME_OF_DAY, NOT_FINITE, CUT)", "(NOT_FINITE, CUT)"),
        tests=(f"{_HOSTILE}test_what_json_can_t_hold_is_refused",),
        why="The same inside JSON.",
    ),
    mutant(
        "signs-of-intervals",
        (
            "LOSSY_TEXTS",
            "(NUL, _NO_EXACT_INTERVAL, _LOST_FRACTION, _SIGN_OF_STYLE)",
            "(NUL, _NO_EXACT_INTERVAL, _LOST_FRACTION)",
        ),
        tests=(f"{_TYPES}test_a_string_whose_sign_depends_on_the_style_of_intervals_is_no_interval",),
        why="A role's IntervalStyle would decide whether an interval's days are negative.",
    ),
    mutant(
        "fractions-of-intervals",
        ("LOSSY_TEXTS", "(NUL, _NO_EXACT_INTERVAL, _LOST_FRACTION, _SIGN_OF_STYLE)", "(NUL, _SIGN_OF_STYLE)"),
        tests=(f"{_EXACT}test_a_text_that_is_taken_for_an_interval_is_that_length_in_each_style",),
        why="PostgreSQL rounds a fraction of a year or a microsecond, and drops one that comes after a time.",
    ),
    mutant(
        "texts-of-which-a-part-is-dropped",
        ("_scalar", "replace(text, after=LOSSY_TEXTS[kind])", "text"),
        tests=(f"{_TYPES}test_a_string_of_which_postgresql_would_drop_a_part_is_refused",),
        why="PostgreSQL leaves out the date and the zone of a text for a time, and rounds a seventh digit.",
    ),
    mutant(
        "internals-of-spark-s-types",
        ("find_cast", "has_type(source, _is_only_spark_s)", "False"),
        tests=("tests/docs/test_types_page.py",),
        why="A GEOMETRY inside a struct would be taken for JSON, and its internals be stored.",
    ),
    mutant(
        "variants-as-their-internals",
        ("variants_as_json", "has_type(kind, is_variant)", "False"),
        tests=(f"{_PAIRS}test_what_holds_a_variant_becomes_a_string_of_json",),
        why="What Spark keeps of a VARIANT would be stored as JSON.",
    ),
    mutant(
        "digits-of-a-float32",
        ("json_texts", "with_own_digits(array)", "array"),
        tests=(f"{_TYPES}test_a_float32_in_json_has_its_own_digits_at_any_depth",),
        why="0.1 would be 0.10000000149011612.",
    ),
    mutant(
        "hollow-arrays",
        ("_hollow", "_KERNELS.list_value_length(array)", "None"),
        tests=(f"{_HOSTILE}test_an_array_of_arrays_that_postgresql_does_not_have_is_refused",),
        why="PostgreSQL makes an empty array of an array of empty ones.",
    ),
    mutant(
        "conversions-to-python",
        ("Encoding.rows", "[self._fit(...) for pair in ...]", "[_python_values(array) for array in _columns(batch)]"),
        tests=(f"{_HOSTILE}test_a_text_of_any_bytes_arrives_or_is_refused",),
        why="Invalid UTF-8 would end the job with a UnicodeDecodeError, and no record named.",
    ),
    mutant(
        "conversions-by-pgpq",
        ("Encoding._encode", "with suppress(*CONVERSION_ERRORS): ...", "if True: ..."),
        ("_MICROSECONDS", "-_EPOCH_JULIAN * 86_400_000_000", "-(2**63)"),
        tests=(_MOMENT,),
        why="What pgpq refuses would end the job with a ValueError. The range would see it first: both go.",
    ),
    mutant(
        "conversions-by-psycopg",
        ("_send_row", "with suppress(*CONVERSION_ERRORS): ...", "if True: ..."),
        tests=(f"{_HOSTILE}test_a_letter_that_the_connection_s_encoding_lacks_is_refused",),
        why="A letter that the connection's encoding lacks would end the job with a UnicodeEncodeError that quotes it.",
    ),
)

MISFITS: Final[tuple[Mutant, ...]] = (
    mutant(
        "values-of-the-next-rows",
        ("cast_values", "is_list(array.type) and array.type != target", "False"),
        tests=(f"{_MISFITS}test_a_list_is_not_refused_for_a_value_of_the_row_after_it",),
        why="Arrow casts what is in a list's buffers: a good record would become a letter for its neighbour's value.",
    ),
    mutant(
        "nulls-that-a-trigger-fills-in",
        text("writers:_COLUMNS", "WHERE tgtype & 7 = 7 AND", "WHERE tgtype & 7 = 9 AND"),
        tests=(f"{_MISFITS}test_a_trigger_may_fill_in_a_null",),
        why="A record that the table takes would become a letter.",
    ),
    mutant(
        "nulls-of-domains",
        text("writers:_COLUMNS", "a.attnotnull AND declared.typtype <> 'd' AND", "a.attnotnull AND"),
        tests=(f"{_MISFITS}test_a_null_is_left_to_the_database_by_an_upsert_and_for_a_domain",),
        why="The letter's error would not be the database's own, which is the domain's.",
    ),
    mutant(
        "misfits-of-another-write",
        ("finds_misfits", '... and goes_with_write(writer, "misfits")', "..."),
        tests=(f"{_MISFITS}test_a_writer_that_has_a_write_of_its_own_is_not_asked",),
        why="A write of the application's own may correct the values that would become letters.",
    ),
)

_SETTINGS: Final = "tests/integration/postgres/test_hostile_settings.py::"
_PINNED: Final = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "xmloption": "content",
}

SETTINGS: Final[tuple[Mutant, ...]] = (
    *(
        mutant(
            f"pin-{setting.replace('_', '-')}",
            text("SETTINGS", f"set_config('{setting}', '{value}', true)", f"current_setting('{setting}')"),
            tests=(
                f"{_SETTINGS}test_triggers_and_own_sql_live_with_the_role_s_path_and_styles_and_all_else_is_postgresql_s",
            ),
            why="A role with another default would store other bytes, or blame a good record.",
        )
        for setting, value in _PINNED.items()
    ),
    mutant(
        "pin-lc-monetary",
        text("SETTINGS", "set_config('lc_monetary', 'C', true)", "current_setting('lc_monetary')"),
        tests=(
            f"{_SETTINGS}test_triggers_and_own_sql_live_with_the_role_s_path_and_styles_and_all_else_is_postgresql_s",
        ),
        why="An amount as money would be read in the role's currency and format.",
    ),
    mutant(
        "encoding-outside-of-sessions",
        text("ENCODINGS", "set_config('client_encoding', 'UTF8', true) AS client", "'UTF8' AS client"),
        tests=(f"{_SETTINGS}test_a_group_s_name_may_have_letters_that_the_role_s_encoding_has_not",),
        why="Who holds a lock could not be told of a group whose name has letters that the role's encoding lacks.",
    ),
    mutant(
        "texts-of-any-session-in-one-message",
        ("PostgresSession._is_plain", "all(...)", "True or all(...)"),
        tests=(f"{_SETTINGS}test_no_default_of_a_role_changes_a_byte[DateStyle]",),
        why="The server would read the first statement in the role's encoding, and times could not be read.",
    ),
    mutant(
        "results-as-text",
        ("PostgresSession._send", "self._psycopg.cursor(**..., binary=True)", "self._psycopg.cursor(**...)"),
        tests=(f"{_SETTINGS}test_no_default_of_a_role_changes_a_byte[IntervalStyle]",),
        why="A store in a database with another style of times or intervals could not be read.",
    ),
    mutant(
        "triggers-and-policies-are-passed-over",
        ("PostgresSession._check_settings", "... != expected", "... is None"),
        tests=(f"{_SETTINGS}test_so_is_a_session_in_which_own_sql_has_left_that_setting",),
        why="Rows would be stored past the target's triggers, foreign keys and policies.",
    ),
    mutant(
        "databases-in-another-encoding",
        ("check_encoding", 'found != "UTF8"', 'found == "none"'),
        tests=(f"{_SETTINGS}test_a_database_that_is_not_in_utf_8_is_refused_by_name",),
        why="Records with letters that it lacks would be blamed one by one.",
    ),
)

_NUMBERS: Final = "tests/unit/protocol/test_numbers.py::"
_NO_TIME: Final = f"{_NUMBERS}test_what_is_no_time_is_refused"
_NOT_WHOLE: Final = f"{_NUMBERS}test_what_is_no_whole_number_is_refused"
_OF_A_STORE: Final = f"{_NUMBERS}test_the_numbers_of_a_store_are_refused_before_anything_is_asked"
_OF_OFFSETS: Final = f"{_NUMBERS}test_a_shift_a_partition_and_a_range_are_of_whole_numbers"

NUMBERS: Final[tuple[Mutant, ...]] = (
    mutant(
        "flag-as-a-number",
        ("check_whole", "isinstance(value, int) and not isinstance(value, bool)", "isinstance(value, int)"),
        tests=(_NOT_WHOLE,),
        why="A limit of True would be a limit of 1.",
    ),
    mutant(
        "half-as-a-number",
        ("check_whole", "isinstance(value, int)", "isinstance(value, (int, float))"),
        tests=(_NOT_WHOLE,),
        why="A buffer that is to be flushed at 1.5 rows, or at infinitely many, would be taken.",
    ),
    mutant(
        "flag-as-a-time",
        ("check_seconds", "... and not isinstance(value, bool)", "..."),
        tests=(_NO_TIME,),
        why="Tick(every=True) would be called each second.",
    ),
    mutant(
        "infinity-as-a-time",
        ("check_seconds", "0 < seconds <= most", "0 < seconds"),
        tests=(_NO_TIME,),
        why="Flush(seconds=inf) would end in an error of Python's clock, hours later.",
    ),
    mutant(
        "flag-as-an-offset",
        ("whole", "if isinstance(value, bool): return None", ""),
        tests=(_OF_OFFSETS,),
        why="A reset to True would be one to 1.",
    ),
    mutant(
        "numpy-s-number-as-an-offset",
        ("as_offset", "whole(value)", "value if type(value) is int else None"),
        tests=(f"{_NUMBERS}test_offsets_and_partitions_of_numpy_become_ints",),
        why="An offset of a frame's column would fail in json, or in the database.",
    ),
    *(
        mutant(
            name,
            (where, old, new),
            tests=(test,),
            why="A number that makes no sense would be taken, and do harm hours later, or none of what was meant.",
        )
        for name, where, old, new, test in (
            (
                "rows-of-a-flush",
                "Flush.__post_init__",
                'check_whole("Flush.rows", self.rows, "rows", least=1)',
                "",
                f"{_NOT_WHOLE}[Flush.rows-1.5]",
            ),
            (
                "seconds-of-a-flush",
                "Flush.__post_init__",
                'check_seconds("Flush.seconds", self.seconds)',
                "",
                f"{_NO_TIME}[Flush.seconds-inf]",
            ),
            (
                "time-of-a-tick",
                "Tick.__post_init__",
                'check_seconds("every", self.every)',
                "",
                f"{_NO_TIME}[Tick.every-True]",
            ),
            (
                "lock-timeout-of-a-store",
                "Timeouts.__post_init__",
                'check_seconds("Timeouts.lock", self.lock, or_zero=True)',
                "",
                f"{_NO_TIME}[Timeouts.lock-nan]",
            ),
            (
                "attempts-of-retries",
                "Retries.__post_init__",
                'check_whole("Retries.attempts", self.attempts, least=1)',
                "",
                f"{_NOT_WHOLE}[Retries.attempts-1.5]",
            ),
            (
                "retries-of-a-record",
                "DeadLetters.__post_init__",
                'check_whole("max_retries", self.max_retries)',
                "",
                f"{_NOT_WHOLE}[DeadLetters.max_retries-1.5]",
            ),
            (
                "lock-timeout-of-a-transaction",
                "new_transaction",
                'check_seconds("lock_timeout", lock_timeout, or_zero=True)',
                "pass",
                _OF_A_STORE,
            ),
            (
                "time-to-wait-for-a-takeover",
                "ClaimRequest.__post_init__",
                'check_seconds("takeover_timeout", self.takeover_timeout, or_zero=True)',
                "",
                _OF_A_STORE,
            ),
            (
                "offset-of-a-mark",
                "check_mark",
                'next_offset = as_offset("next_offset", next_offset)',
                "",
                _OF_OFFSETS,
            ),
        )
    ),
)

SINK: Final[tuple[Mutant, ...]] = (
    mutant(
        "strip-at-the-sink",
        ("Runner._run", "stripped(error)", "error"),
        tests=("tests/integration/spark/test_canary.py",),
        why="What a writer of the application's own raises would reach Spark's log with the row.",
    ),
)

VALUES: Final = (*ERRORS, *CONVERSIONS, *MISFITS, *SETTINGS, *NUMBERS, *SINK)
