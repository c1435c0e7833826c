# Audit events are append-only in the database itself: UPDATE, DELETE and TRUNCATE are refused.

from django.db import migrations

CREATE = """
CREATE FUNCTION audit_event_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Test runners empty their own databases (named test_*) with TRUNCATE; nothing else may.
    IF TG_OP = 'TRUNCATE' AND current_database() LIKE 'test\\_%' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'audit events are append-only: % is refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE ON audit_auditevent
    FOR EACH ROW EXECUTE FUNCTION audit_event_refuse_change();
CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON audit_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION audit_event_refuse_change();
"""

DROP = """
DROP TRIGGER audit_event_no_truncate ON audit_auditevent;
DROP TRIGGER audit_event_append_only ON audit_auditevent;
DROP FUNCTION audit_event_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [migrations.RunSQL(CREATE, DROP)]
