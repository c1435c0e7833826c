# Chains that were there before heads get theirs: from now on an end that is cut off shows.

from django.core.signing import Signer
from django.db import migrations
from django.db.models import Max


def make_heads(apps, schema_editor):
    Event, Head = apps.get_model("audit", "AuditEvent"), apps.get_model("audit", "AuditHead")
    for project_id, sequence in Event.objects.order_by().values_list("project_id").annotate(last=Max("sequence")):
        event = Event.objects.get(project_id=project_id, sequence=sequence)
        text = f"{project_id or 'platform'}|{sequence}|{event.hash}"
        signature = Signer(salt="audit.head").signature(text)
        Head.objects.create(project_id=project_id, sequence=sequence, hash=event.hash, signature=signature)


class Migration(migrations.Migration):
    dependencies = [("audit", "0003_origin_and_heads")]

    operations = [migrations.RunPython(make_heads, migrations.RunPython.noop)]
